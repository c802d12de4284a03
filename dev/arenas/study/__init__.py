"""A user study: people see two takes of the same seed side by side, and choose.

sheet.py          the folder that people get (a page and its videos), and the key, which they do not
side_by_side.py   two videos as one
page.html         the page; it opens from a file, without a server
preference.py     the choices, counted

    first/full/videos/*.mp4, first/decoprune/videos/*.mp4
      -> sheet.make -> OUT/sheet/index.html, OUT/sheet/videos/001.mp4, ...; OUT/key.json
      -> people choose -> choices of each person, as JSON or CSV
      -> preference.of(key, files) -> how many prefer which, with intervals
"""
