"""Report formats of a round: HTML, terminal, JUnit XML, Markdown."""
