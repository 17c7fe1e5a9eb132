"""An OpenAI-style HTTP API over a target.

faults      what is answered in the place of an answer
schema      the bodies of requests, and what of them is refused
prepare     a body becomes requests of the decode loop
backend     who answers them: a queue and the thread of the engine
tool_calls  the calls in what a model writes
figures     usage and acceptance of a response
chat, completions, responses   the bodies of the three kinds of response, whole and piece by piece
app         routes, keys, limits, disconnects
"""
