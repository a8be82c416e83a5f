import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * What Apache Avro makes of each line: one schema is answered with its text, two (reader, tab, writer) with what keeps
 * the first from reading the second.
 */
public class AvroOracle {
  public static void main(String[] arguments) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] parts = line.split("\t");
      try {
        answers.println(parts.length == 1 ? parse(parts[0]).toString() : differences(parts[0], parts[1]));
      } catch (RuntimeException refused) {
        answers.println("refused");
      }
    }
    answers.flush();
  }

  private static Schema parse(String text) {
    Schema.Parser parser = new Schema.Parser(NameValidator.STRICT_VALIDATOR);
    parser.setValidateDefaults(true);
    return parser.parse(text);
  }

  private static String differences(String reader, String writer) {
    StringBuilder found = new StringBuilder();
    SchemaCompatibility.checkReaderWriterCompatibility(parse(reader), parse(writer)).getResult().getIncompatibilities()
        .forEach(each -> found.append(each.getType()).append(' ').append(each.getLocation()).append(' ')
            .append(each.getMessage()).append('\t'));
    return "differences\t" + found;
  }
}
