"""Reading message stores from Spark. Empty until the export is built."""
