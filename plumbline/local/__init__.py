"""Local stack: all servers that a round needs, as child processes.

All state is in one folder. The package only starts processes: it imports neither Prefect nor a cloud's SDK. It imports
none of its modules, because `python -m` runs two of them as programs.
"""
