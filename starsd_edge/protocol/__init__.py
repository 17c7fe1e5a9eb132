"""The wire, version 1: messages, codec and the state machines of both ends. Pure: bytes and events in, bytes and
events out; no sockets, no clocks.
"""
