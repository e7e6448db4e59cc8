package modcrypt;

import java.util.LinkedHashMap;
import java.util.Map;

/** The key metadata in a file: key material, or a reference to material beside the file. */
final class KeyMetadata {
  private static final String WRITE = "modcryptWrite"; // member with the id of the run that wrote the file

  final KeyMaterial material; // null if it is beside the file
  final String reference; // name of the key in that material; null otherwise
  final String write; // id of the modcrypt run that wrote the file; null for other writers

  private KeyMetadata(KeyMaterial material, String reference, String write) {
    this.material = material;
    this.reference = reference;
    this.write = write;
  }

  static KeyMetadata decode(byte[] data) {
    Map members = KeyMaterial.members(data);
    if (KeyMaterial.flag(members, "internalStorage")) {
      return new KeyMetadata(KeyMaterial.of(members), null, null);
    }
    return new KeyMetadata(null, KeyMaterial.name(members, "keyReference"), write(members));
  }

  /** Returns the key metadata of a key whose material is beside the file. */
  static byte[] encode(String reference, String write) {
    Map members = new LinkedHashMap();
    members.put("keyMaterialType", "PKMT1");
    members.put("internalStorage", Boolean.FALSE);
    members.put("keyReference", reference);
    mark(members, write);
    return Texts.json(members);
  }

  /** Adds the id of the run that writes the file. */
  static void mark(Map members, String write) {
    members.put(WRITE, write);
  }

  /** Returns the id of the modcrypt run that wrote key material; null for other writers. */
  static String write(Map members) {
    Object write = members.get(WRITE);
    boolean valid = write instanceof String && ((String) write).matches("[0-9a-f]{16}");
    return valid ? (String) write : null;
  }
}
