"""How objects show themselves in notebooks (`_repr_html_`): small, self-contained HTML."""
