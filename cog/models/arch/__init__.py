"""The networks. Constructors build them with their classifier; loading removes it."""
