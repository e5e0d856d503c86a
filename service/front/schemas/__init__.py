"""The bodies of requests (pydantic, strict) and answers (typed dictionaries), by route."""
