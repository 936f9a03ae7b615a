"""Small measurements behind single tables of the documentation: ``python -m`` runs each of them."""
