"""How the embedded model's text side is made; see the README beside this file."""
