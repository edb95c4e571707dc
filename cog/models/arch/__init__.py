"""The networks. Constructors build a network with its classifier; loading removes the classifier."""
