"""From a request that was understood to its events, in no API's words: slots, prompt, loop, store."""
