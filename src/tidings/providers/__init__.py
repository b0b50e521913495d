"""The ways out to people: one file for each provider, behind one seam."""
