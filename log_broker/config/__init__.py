"""Every setting of a broker, a topic and a group, declared once."""
