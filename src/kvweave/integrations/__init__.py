"""Translations between other projects' engines and kvweave's public interface."""
