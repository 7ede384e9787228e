"""The service: an HTTP API for prediction and online learning, and a web page.

The path of a request through the files: `guard` (rights and limits), `routes` (endpoints),
`uploads` (body to images), `learning` and `engine` (interface to the classifier), `encoder` and
`turns` (its threads).
"""
