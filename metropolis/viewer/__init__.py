"""The viewer: a local page that shows a run or a replay; docs/viewer.md."""
