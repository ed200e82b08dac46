"""The fixed word lists that every task of the corpus draws from."""

NAMES = (
    "Anna Ben Clara Daniel Ella Felix Grace Henry Iris Jack Kate Leo Mia Noah Olive Paul Quinn Rosa "
    "Sam Tara Uma Victor Wendy Xavier Yara Zoe Alice Bruno Cora David Emma Frank Gina Hugo Ivy Jonas "
    "Lena Max Nina Oscar Pia Ralf Sara Tom Vera Will Amir Bella Carl Dora Erik Flora George Hana"
).split()

SURNAMES = (
    "Adler Baker Carter Dahl Evans Fisher Gray Hill Ito Jones Keller Lopez Moore Novak Olsen Parker "
    "Reed Silva Turner Vogel Weber Young Berg Cole Diaz Frost Hart King Lane Marsh Noble Page"
).split()

PERSONAS = (
    "Mira Atlas Juno Nova Orion Pixel Sage Echo Luna Milo Ruby Theo Vega Willow Ziggy Basil Comet Dash "
    "Ember Finch"
).split()

ADJECTIVES = (
    "amber blue brown calm clever cold copper crimson curly dark deep dusty early faint fast fine flat "
    "fresh golden grand green heavy hidden high hollow icy iron ivory jolly kind large late lazy light "
    "little long loud low lucky mild misty narrow new noble odd old open orange pale plain pink proud "
    "purple quick quiet rapid rare red rich rough round royal rusty sharp short shy silent silver simple "
    "small smooth soft solid steady steep strong sweet swift tall tender thick thin tiny violet warm "
    "white wide wild wise wooden yellow young"
).split()

NOUNS = (
    "anchor apple arrow badge barrel basket beacon bell bench bottle branch bread bridge brush bucket "
    "button cable camera candle canvas carpet castle chair chest clock cloud coat coin compass crane "
    "crown cup curtain desk diamond door dragon eagle engine falcon feather fence field flag flute "
    "forest fork fountain frame gate glass glove hammer harbor harp hat hawk helmet hill horn horse "
    "island jacket jar jewel key ladder lake lamp leaf lemon lens letter lion lock magnet map marble "
    "market mask meadow mill mirror moon mountain needle nest ocean orchard otter owl paddle palace "
    "panda pearl pebble pencil phone piano pillow planet plate pocket pond pump rabbit radio raven ribbon "
    "ring robin rocket roof rope rose saddle sail salmon scarf school shell shield ship shoe signal "
    "sock spider spoon stable star statue stone storm stove street sword table tent ticket tiger tower "
    "trail train tree trumpet tunnel valley vase violin wagon walnut wheel whistle window wolf yard"
).split()

COLORS = (
    "black blue brown gold gray green orange pink purple red silver teal white yellow maroon navy"
).split()

FOODS = (
    "apples bananas beans bread butter carrots cheese cherries cookies corn grapes honey lemons mangos "
    "melons noodles nuts olives onions oranges pancakes pasta peaches pears plums potatoes rice salad soup "
    "tomatoes"
).split()

CITIES = (
    "Athens Berlin Bergen Boston Cairo Dakar Delhi Dublin Geneva Hanoi Kyoto Lima Lisbon London Lyon "
    "Madrid Milan Nairobi Oslo Paris Prague Quito Riga Rome Seoul Sydney Tokyo Turin Vienna Warsaw"
).split()

COUNTED = (
    "apples books boxes buttons cards chairs coins cookies cups eggs flowers letters marbles nuts pages "
    "pencils plates points seeds shells stamps stars stickers stones tickets toys"
).split()

CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
