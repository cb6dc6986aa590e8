"""What Lambda's own API tells of prices."""
