"""The service: an HTTP API that predicts and learns at once, and a page for people.

One request, in the order of the files: `guard` (who may, how much, how fast), `routes` (what is
asked), `uploads` (bytes to pixels), `engine` (the one door to the classifier), `encoder` and
`turns` (the threads behind it).
"""
