"""Object stores with a common interface: `file://`, `s3://`, `az://`, `gs://`."""

from plumbline.data.stores.opening import open_store as open_store
from plumbline.data.stores.opening import presign as presign
from plumbline.data.stores.protocol import BucketMissingError as BucketMissingError
from plumbline.data.stores.protocol import ObjectExistsError as ObjectExistsError
from plumbline.data.stores.protocol import ObjectInfo as ObjectInfo
from plumbline.data.stores.protocol import ObjectMissingError as ObjectMissingError
from plumbline.data.stores.protocol import ObjectReader as ObjectReader
from plumbline.data.stores.protocol import PreconditionFailedError as PreconditionFailedError
from plumbline.data.stores.protocol import Store as Store
from plumbline.data.stores.protocol import StoreUnavailableError as StoreUnavailableError
from plumbline.data.stores.protocol import ensure_content as ensure_content
from plumbline.data.stores.protocol import ensure_object as ensure_object
from plumbline.data.stores.protocol import read_bytes as read_bytes
from plumbline.data.stores.retry import RetryingStore as RetryingStore
from plumbline.data.stores.retry import RetryPolicy as RetryPolicy
