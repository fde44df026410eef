//! Gateways over a group, of which members and gateways die.
