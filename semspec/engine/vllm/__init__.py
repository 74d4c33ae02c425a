"""The engine over vLLM: one scheduler for all requests, several GPUs, quantisation. Imported only when it is chosen.

In the service, `engine` runs requests, `process` supervises vLLM's processes, and `options` converts settings. Messages
between both sides are in `requests`. In vLLM's processes, `recorder` and `calls` compute states, scores and draws
without using vLLM. `internals` connects them to vLLM by three class hooks; no other file uses vLLM's private names.
"""
