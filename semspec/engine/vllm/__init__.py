"""The engine over vLLM: one scheduler for all requests, several GPUs, quantisation. Imported only when it is chosen.

`engine` is the side of the service, `process` what it knows of vLLM's processes, `options` its settings. `requests` is
what travels between both sides. In vLLM's processes, `recorder` and `calls` compute states, scores and draws, without a
name of vLLM; `internals` connects them with vLLM by its three class hooks, and is the only file with private names.
"""
