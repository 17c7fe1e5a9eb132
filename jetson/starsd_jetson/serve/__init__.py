"""An OpenAI-style HTTP API over a target.

schema      the bodies of requests, and what of them is refused
prepare     a body becomes requests of the decode loop
backend     who answers them: a queue and the thread of the engine
tool_calls  the calls in what a model writes
choices     what becomes of each choice; usage and acceptance
chat        the bodies of chat completions and completions, whole and in chunks
responses   the same for the Responses API
door        who is let in
metrics     `/metrics`
app         routes, limits, disconnects
server      all of it around one target, and the process that speaks HTTP
"""
