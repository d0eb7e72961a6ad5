"""The same core and protocol in virtual time, for fleets that no machine here could hold."""
