"""The routes: HTTP in, a border call, HTTP out. Nothing here measures or knows torch."""
