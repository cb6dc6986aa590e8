"""Events of the engine as typed changes of resources, without secrets. Pure."""
