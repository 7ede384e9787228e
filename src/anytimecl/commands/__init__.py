"""One file per command or group; each has `register(app)`, and `cli.py` lists them."""
