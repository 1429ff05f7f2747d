"""Known bugs of other managers, each put into ours and caught by the law that is named for it."""
