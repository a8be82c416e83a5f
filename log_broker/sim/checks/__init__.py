"""What must hold of a simulated cluster after each event."""
