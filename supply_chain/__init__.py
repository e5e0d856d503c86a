"""What the program is made of: known vulnerabilities of the locked packages, and the bill of materials."""
