"""Pictures as SVG files, readable on light and on dark pages."""
