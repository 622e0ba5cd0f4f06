"""Networks that protect records, and claim it of persons: what an audit says of them."""
