"""An AWS account as plans see it: asked by boto3, and cleared of what a killed call left."""
