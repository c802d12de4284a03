"""What an artist sees: the shipped workflows open and run on the page, in both node renderers."""
from pathlib import Path

WORKFLOWS = sorted(path.stem for path in (Path(__file__).parents[2] / "workflows").glob("*.json"))


def test_every_workflow_opens(page):
    for name in WORKFLOWS:
        page.open(name)
        missing = page.tab.evaluate("app.graph.nodes.map(node => node.type).filter(type => !(type in LiteGraph.registered_node_types))")
        assert not missing, name
        assert page.tab.evaluate("app.graph.nodes.filter(node => node.inputs?.some(input => input.type.startsWith?.('KEEPSAKE'))).length") > 1, name
        assert page.tab.get_by_text("Missing Node").count() == 0, name


def test_the_quickstart_runs_by_its_button(page):
    page.open("quickstart", latent_frames=9)
    page.run()
    report = page.tab.locator(".keepsake-report", has_text="prune ratio")
    report.wait_for()
    assert "9 latent frames" in report.inner_text()
    page.wait_until_done()
