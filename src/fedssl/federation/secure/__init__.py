"""Secure aggregation: the server learns the sum of the clients' vectors, and of one client's nothing.

Double masking with dropouts (Bonawitz et al., 2017), for tens of sites. No transport is known here: members and a
coordinator make and take messages, in one process or through a server that nobody trusts.
"""

from fedssl.core.extras import need

need("secure", "secure aggregation")
