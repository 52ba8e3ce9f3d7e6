"""The faces of a round: the HTML report, the terminal's table, JUnit XML and a CI job's summary."""
