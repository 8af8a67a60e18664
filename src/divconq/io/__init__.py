"""Reading and writing files: atomic writes, safetensors, YAML values, tables in the terminal."""
