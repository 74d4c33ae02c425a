"""The HTTP gateway: OpenAI's and TGI's APIs over draft, target and verifier; Redis stores traces and sessions."""
