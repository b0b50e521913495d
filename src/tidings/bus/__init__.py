"""The bus: where released records appear."""
