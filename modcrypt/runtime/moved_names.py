"""Names that were at the top of modcrypt before they had packages; they work until 1.1."""

_PACKAGES = {
    "modcrypt.errors": """
        AadPrefixError ChecksumError CommitConflictError FooterSignatureError FormatError
        IntegrityError KeyAccessDeniedError KeyDisabledError KeyExhaustedError KeyMaterialError
        KeyNotFoundError KeyRetrievalError KmsUnavailableError LimitError PlaintextError
        TagMismatchError TruncationError UnsupportedFormatError WriterSignatureError
    """,
    "modcrypt.ags1": """
        Ags1Summary inspect_ags1 UNVERIFIED Ags1Reader Ags1Writer BlockId StandardKeyMetadata
    """,
    "modcrypt.parquet": """
        Finding Unauthenticated Rewritten ColumnInspection Inspection DatasetVerification
        Verification ModuleId ModuleType KeyRetriever
    """,
    "modcrypt.kms": """
        open_kms KmsClient KeyAdmin Capabilities MasterKey VerifyingKey RequiredSeal
        RecipientEncryption read_recipients AuditEvent audit_to_json_lines audit_to_logging
        as_pyarrow_client from_pyarrow_client KeyInfo
    """,
    "modcrypt.jobs": """
        SealFinding SealUpdate SealVerification seal_dataset update_seal verify_seal sealing
        RotatedFile rotate_keys ScannedKey scan_keys LeakReport ValueLeak find_leaks
        ChangedRecipients ListedRecipient ListedRecipients add_recipients list_recipients
        remove_recipients SealEntry SealLog change_seal_writers cosign_seal seal_log
        witness_seal Proof ProvenFile prove_shredded ShreddedFile shred_keys KeyProof
    """,
    "modcrypt.lake": """
        LakeApplication LakeDataset FileState DatasetImpact KeyStep LakeReport DatasetStatus
        LakeVerification
    """,
    "modcrypt.report": """
        render_html
    """,
}

MOVED = {name: package for package, names in _PACKAGES.items() for name in names.split()}
"""The package of each name."""
