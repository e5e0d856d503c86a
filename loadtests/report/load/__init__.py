"""Load: what each arrival rate and each concurrency did to latency, goodput, and the knee of every mode."""
