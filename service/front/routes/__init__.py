"""The routes: each turns an HTTP request into a call of the engine or the state, and that into an answer."""
