"""What the processes share: messages, modes, status, studies. No torch and no HTTP."""
