"""The documents of the HTTP API, each field declared once: its type, default, bounds, description and an example.

Decoders, OpenAPI, the tables of the reference, the options of the command line, the headers on Kafka and the library's
options are derived from these structs.
"""
