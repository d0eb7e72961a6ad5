"""The protocol between two engines without any I/O: messages in, events and effects out, time as an argument."""
