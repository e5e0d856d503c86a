"""Two builds compared from their sweeps: likeness, cells, verdict, and how they are told."""
