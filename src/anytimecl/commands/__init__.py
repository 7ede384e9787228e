"""One file a command or group of commands; each has `register(app)`, and `cli.py` lists them."""
