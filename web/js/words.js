import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";

// Our own words in the page's language, from locales/<language>/main.json; English where a language
// lacks them.

let words = {};

/** The text under a key of `keepsake` in main.json, its {names} filled in. */
export function say(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

app.registerExtension({
  name: "keepsake.words",
  async setup() {
    const answer = await api.fetchApi("/i18n");
    const byLanguage = await answer.json();
    const language = app.extensionManager.setting.get("Comfy.Locale");
    words = { ...byLanguage.en?.keepsake, ...byLanguage[language]?.keepsake };
  },
});
